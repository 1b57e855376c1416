"""Promises of the server, tested from outside: real processes, real sockets, the contract alone.

    server.py        starts, watches, freezes, kills and stops a server process
    http_client.py   one HTTP/1.1 connection that can be cut at any point
    history.py       what the client did and was told, and the offline judge of it
    traffic.py       traffic that writes a history
    scrape.py        the server's own account: metrics and access records
    promises.py      one check a promise; raises AssertionError where it is broken
    flawed_server.py a small server with switchable flaws, which the same checks must catch

`test_promise_*` run each check twice: it must pass on Tailproof, and fail on the flaw it names.
"""
