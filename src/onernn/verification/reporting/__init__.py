"""The page that shows a comparison: verdict, plots, pictures of the graph."""
