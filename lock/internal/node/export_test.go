package node

// Times of a link, for tests.
const (
	ExtraTime   = extraTime
	ResendEvery = resendEvery
)
