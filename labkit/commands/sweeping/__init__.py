"""`labkit sweep`: a chapter for each of several parameters, and a report of what it recorded."""
