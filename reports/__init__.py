"""What comes out: verdicts, figures, tables and the HTML report."""
