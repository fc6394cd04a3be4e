"""What: templates made ready once, and rendered for each recipient."""
