"""Programs that serve the pages, the checks and the shape of the repository. They measure no privacy."""
