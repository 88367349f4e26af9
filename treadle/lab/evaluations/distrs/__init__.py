"""The evaluation of DistRS (§6) for a person: jobs to run, figures beside the paper's, tables, a plot."""
