package forward

import (
	"crypto/ed25519"
)

// nonceSize is the number of random bytes in the callee's Hello that the caller signs.
const nonceSize = 32

// proofContext begins every signed text, so that signatures made for other purposes are
// not valid here.
const proofContext = "ringfence peer v1"

// proofText returns the text that a caller signs to prove that it is the incarnation of
// its Hello. All parts have a fixed width. It contains the callee's incarnation, so that a
// callee cannot reuse the signature at another member.
func proofText(nonce [nonceSize]byte, caller, callee Peer) []byte {
	text := make([]byte, 0, len(proofContext)+len(nonce)+len(caller)+len(callee))
	text = append(text, proofContext...)
	text = append(text, nonce[:]...)
	text = append(text, caller[:]...)
	return append(text, callee[:]...)
}

// signProof returns the signature of a caller's Proof.
func signProof(key ed25519.PrivateKey, nonce [nonceSize]byte, caller, callee Peer) []byte {
	return ed25519.Sign(key, proofText(nonce, caller, callee))
}

// verifyProof reports whether a Proof was signed with the private half of key.
func verifyProof(key ed25519.PublicKey, nonce [nonceSize]byte, caller, callee Peer, signature []byte) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, proofText(nonce, caller, callee), signature)
}
