"""Pure theory: no sockets, files, threads; only `clock` reads a clock."""
