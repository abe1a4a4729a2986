"""A report on a job: one file with all charts, tables and a timeline, and pictures of the charts."""
