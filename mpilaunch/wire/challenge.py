"""Challenge and response: both sides of a connection prove that they know a secret, without sending it.

No I/O. The side that was connected to sends a nonce (step 1). The side that has connected answers with a nonce of its own and
its proof (step 2), and gets the other side's proof (step 3). A proof is an HMAC-SHA256 over the role of the side that gives it
and both nonces, so that no proof can be used again, nor be sent back to the side that made it. Nothing else may be read from a
side that has given no proof. It runs on Python 3.8; `hmac` is loaded only when a proof is made.
"""

from __future__ import annotations

import os

NONCE_SIZE = PROOF_SIZE = 32
ANSWER_SIZE = NONCE_SIZE + PROOF_SIZE
"""Bytes of steps 1 and 3, and of step 2."""
_LISTENER, _CALLER = b"mpilaunch listener", b"mpilaunch caller"


class Listener:
    """The side that was connected to.

    Attributes:
        nonce: step 1, to be sent.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.nonce = os.urandom(NONCE_SIZE)

    def check(self, answer: bytes) -> bytes:
        """Take step 2; return step 3, to be sent, or nothing when the other side does not know the secret."""
        if len(answer) != ANSWER_SIZE:
            return b""
        theirs, proof = answer[:NONCE_SIZE], answer[NONCE_SIZE:]
        if not _equal(proof, _proof(self._secret, _CALLER, self.nonce, theirs)):
            return b""
        return _proof(self._secret, _LISTENER, self.nonce, theirs)


class Caller:
    """The side that has connected."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._theirs = b""
        self._nonce = os.urandom(NONCE_SIZE)

    def answer(self, nonce: bytes) -> bytes:
        """Take step 1; return step 2, to be sent."""
        self._theirs = nonce
        return self._nonce + _proof(self._secret, _CALLER, nonce, self._nonce)

    def check(self, proof: bytes) -> bool:
        """Take step 3; return whether the other side knows the secret."""
        return _equal(proof, _proof(self._secret, _LISTENER, self._theirs, self._nonce))


def _proof(secret: bytes, role: bytes, listener_nonce: bytes, caller_nonce: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, role + listener_nonce + caller_nonce, "sha256")


def _equal(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)
