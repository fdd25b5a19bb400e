package main

// cuts counts how many faults cut each pair of addresses: two of them may have a pair
// in common, which is whole again when both are over.
type cuts map[string]int

// add counts the pairs, and returns those that were whole.
func (c cuts) add(pairs []string) (fresh []string) {
	for _, p := range pairs {
		if c[p]++; c[p] == 1 {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// remove takes the pairs back, and returns those that are whole now.
func (c cuts) remove(pairs []string) (whole []string) {
	for _, p := range pairs {
		if c[p]--; c[p] == 0 {
			whole = append(whole, p)
			delete(c, p)
		}
	}
	return whole
}
