//go:build !race

package renderer_test

// raceDetector: the tests run without it.
const raceDetector = false
