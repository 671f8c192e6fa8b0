"""What the reports share: arms and their scores, tables, figures and the page."""
