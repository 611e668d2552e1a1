"""What does the work: the local engine, one process or several. Spark's engine has its own package."""
