"""`treadle replay gpu`: what is run, the report, its tables and its picture."""
