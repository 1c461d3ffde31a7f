// Command worker is a worker process without the race detector, for tests that
// run with it.
package main

import (
	"fmt"
	"os"

	"github.com/keelson-io/keelson/renderer"
)

func main() {
	if err := renderer.Work(os.Stdin, os.NewFile(3, "answers")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
