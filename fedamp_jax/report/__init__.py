"""Results as something to look at: tables, figures, pages."""
