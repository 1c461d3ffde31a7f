//go:build !race

package registry_test

// raceDetector: the tests run without it.
const raceDetector = false
