"""Holds the TLS settings of clients that never use any: what the tests talk to speaks plain HTTP.

A client of httpx that is given none reads all certificates that the system trusts: 40 ms, in which a test's event loop
answers nobody.
"""

import ssl

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
