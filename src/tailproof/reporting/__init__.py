"""Every picture and table, and the documents and folders that they are made from."""
