package connect

import "time"

// SetFilesEvery sets how often a source looks at files.
func SetFilesEvery(s *Source, every time.Duration) { s.filesEvery = every }
