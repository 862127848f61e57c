"""The jobs, in one Spark session, and by themselves where no session is needed."""
