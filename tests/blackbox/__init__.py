"""Promises of the server, tested from outside: real processes, real sockets, the contract alone.

    server.py         starts, watches, kills and stops a server process; captures its log
    processes.py      what Linux says about processes; freezes them
    http_client.py    one HTTP/1.1 connection that can be cut at any point
    traffic.py        traffic that writes a history
    steps.py          the same at set rates, open loop
    history.py        what the client did and was told, and the offline judge of it
    refusals.py       what a refused caller must have been told
    scrape.py         the server's own account: its metrics
    model_log.py      the model's own account: what it computed
    flawed_server.py  a small server with switchable flaws

A promise is one check, a coroutine that takes a running server and raises AssertionError. It is
played on Tailproof, where it must pass, and on the small server with the flaw that breaks the
promise, where it must fail with the words that name it.
"""
