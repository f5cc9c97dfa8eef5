"""Tables and pictures of the documents."""
