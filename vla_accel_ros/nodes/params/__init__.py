"""Every parameter of every node, as data: a module per node, and all of them in tables.py."""
