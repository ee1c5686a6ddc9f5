"""Consumer of harness: the fit to the published tables, and how the two network models differ."""
