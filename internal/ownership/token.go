package ownership

import "strconv"

// The parts of a token: generation, ledger, entry.
const (
	ledgerBits = 34
	entryBits  = 22
)

// Token is the fencing token of a tenure, as the application and its sink see it.
// Of two tenures of one partition the later one has the greater token. Zero is no token.
type Token int64

// TokenOf packs the position at which a tenure began.
func TokenOf(gen uint32, start Position) Token {
	return Token(gen)<<(ledgerBits+entryBits) | Token(start.Ledger)<<entryBits | Token(start.Entry)
}

// String returns the token in decimal, as the application sees it.
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Gen returns the generation of a token.
func (t Token) Gen() uint32 { return uint32(t >> (ledgerBits + entryBits)) }

// tokenInRange reports whether a record at this position may begin a tenure. It is
// a rule of structural validity: judged by every member alike, never by the proposer alone.
func tokenInRange(at Position) bool {
	return at.Ledger >= 0 && at.Ledger < 1<<ledgerBits && at.Entry >= 0 && at.Entry < 1<<entryBits
}
