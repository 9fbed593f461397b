"""Challenge and response: both sides of a connection prove that they know a secret, without sending it.

No I/O. The listener sends a nonce (step 1). The caller answers with a nonce of its own and its proof (step 2), and gets the
listener's proof (step 3). A proof is an HMAC-SHA256 over the role of its maker and both nonces, so that it can neither be used
again nor be sent back to its maker. Nothing else may be read from a side before its proof. `hmac` is loaded only for a proof.
"""

from __future__ import annotations

import os

NONCE_SIZE = PROOF_SIZE = 32
ANSWER_SIZE = NONCE_SIZE + PROOF_SIZE
"""Bytes of steps 1 and 3, and of step 2."""
_LISTENER, _CALLER = b"mpilaunch listener", b"mpilaunch caller"


class Listener:
    """The side that accepts the connection, and first sends `nonce`, step 1."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.nonce = os.urandom(NONCE_SIZE)

    def check(self, answer: bytes) -> bytes:
        """Check step 2; return step 3 to be sent, or b"" if the caller does not know the secret."""
        if len(answer) != ANSWER_SIZE:
            return b""
        theirs, proof = answer[:NONCE_SIZE], answer[NONCE_SIZE:]
        if not _equal(proof, _proof(self._secret, _CALLER, self.nonce, theirs)):
            return b""
        return _proof(self._secret, _LISTENER, self.nonce, theirs)


class Caller:
    """The side that connects."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._theirs = b""
        self._nonce = os.urandom(NONCE_SIZE)

    def answer(self, nonce: bytes) -> bytes:
        """Take step 1; return step 2 to be sent."""
        self._theirs = nonce
        return self._nonce + _proof(self._secret, _CALLER, nonce, self._nonce)

    def check(self, proof: bytes) -> bool:
        """Check step 3; return whether the listener knows the secret."""
        return _equal(proof, _proof(self._secret, _LISTENER, self._theirs, self._nonce))


def _proof(secret: bytes, role: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, role + listener_nonce + caller_nonce, "sha256")


def _equal(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)
