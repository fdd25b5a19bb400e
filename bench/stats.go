package main

import (
	"slices"
	"sort"
)

// median returns the median and the extremes of values, zeros when there are none.
func median(values []float64) (mid float64, minMax [2]float64) {
	if len(values) == 0 {
		return 0, minMax
	}
	s := slices.Clone(values)
	sort.Float64s(s)
	mid = s[len(s)/2]
	if len(s)%2 == 0 {
		mid = (s[len(s)/2-1] + s[len(s)/2]) / 2
	}
	return mid, [2]float64{s[0], s[len(s)-1]}
}

// medians returns the median of each role over the repetitions.
func medians(repetitions []map[string]float64) map[string]float64 {
	byRole := map[string][]float64{}
	for _, r := range repetitions {
		for role, v := range r {
			byRole[role] = append(byRole[role], v)
		}
	}
	out := map[string]float64{}
	for role, values := range byRole {
		out[role], _ = median(values)
	}
	return out
}
