"""Charts and the HTML report, built from result files."""
