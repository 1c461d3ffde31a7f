package naming

import (
	"fmt"
	"strings"
)

// maxSuggested bounds the compared candidates. A file of unknown names, in a repository with many
// names, would otherwise take hours.
const maxSuggested = 2000

// Suggest returns `did you mean "X"?` for the candidate nearest to written, or "" if none is near
// or there are too many.
func Suggest(written string, candidates []string) string {
	if len(candidates) > maxSuggested {
		return ""
	}
	best, bestDistance := "", max(1, len(written)/3)+1
	for _, c := range candidates {
		d := distance(strings.ToLower(written), strings.ToLower(c))
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// distance counts the edits from a to b: insert, delete, replace, or swap two neighbours.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
