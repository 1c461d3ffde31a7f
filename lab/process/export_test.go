package process

import "time"

// ParseStat exposes parseStat as the values that matter.
func ParseStat(line string) (state byte, cpu time.Duration, start uint64, pages int64, err error) {
	s, err := parseStat(line)
	return s.state, ticks(s.cpu), s.start, s.rssPages, err
}
