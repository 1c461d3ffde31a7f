//go:build race

package renderer_test

// raceDetector: the tests run with it.
const raceDetector = true
