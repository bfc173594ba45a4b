"""Charts and the HTML page, built from result files."""
