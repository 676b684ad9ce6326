package pgfence

// WaitingEnds is how many grants wait for the group before them.
func WaitingEnds(f *Fence) int {
	f.endings.mu.Lock()
	defer f.endings.mu.Unlock()
	return len(f.endings.waiting)
}
