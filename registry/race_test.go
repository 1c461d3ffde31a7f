//go:build race

package registry_test

// raceDetector: the tests run with it.
const raceDetector = true
