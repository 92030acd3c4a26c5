"""Tables by what they are about, one file each; warehouse/tables.py joins them and says who writes which."""
