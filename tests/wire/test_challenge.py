"""Challenge and response: each side proves that it knows the secret, and no proof serves twice."""

from __future__ import annotations

from mpilaunch.wire.challenge import ANSWER_SIZE, NONCE_SIZE, PROOF_SIZE, Caller, Listener


def test_both_sides_prove_themselves_and_no_proof_serves_twice() -> None:
    listener, caller = Listener(b"s"), Caller(b"s")
    answer = caller.answer(listener.nonce)
    proof = listener.check(answer)
    assert len(proof) == PROOF_SIZE and caller.check(proof)
    assert Listener(b"s").check(answer) == b"", "a nonce is new each time"
    assert listener.check(Caller(b"other").answer(listener.nonce)) == b""
    assert not any(map(listener.check, (b"", answer[:-1], answer + b"x", bytes(ANSWER_SIZE))))
    assert not caller.check(answer[NONCE_SIZE:]), "a proof that is sent back proves nothing"
    assert not caller.check(b"") and not Caller(b"s").check(proof)
