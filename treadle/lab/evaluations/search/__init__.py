"""`treadle replay search`: what is run, the report, its tables and its picture."""
