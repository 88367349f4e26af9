"""`treadle replay tangram`: what is run, the report, its tables and its picture."""
