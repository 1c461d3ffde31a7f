package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// leaks searches all output of Keelson in the whole run for the planted secrets. Before
// that, the search must find a control secret that leaks itself puts there.
func (c *chaos) leaks() (o outcome) {
	started := time.Now()
	o.name, o.did = "planted values", "secret values planted and searched for"
	o.err = must.Try(func() { c.searchAll(&o.result) })
	for _, v := range o.violations {
		harness.Say("planted values: VIOLATION %s", v)
	}
	o.took = time.Since(started)
	return o
}

func (c *chaos) searchAll(r *result) {
	worlds := must.Get(filepath.Glob(filepath.Join(c.folder, "*", "logs")))
	if len(worlds) == 0 {
		must.Failf("there is nothing to search")
	}
	c.control(worlds[0])
	if r.number = len(c.planted.values); r.number == 0 && len(c.only) > 0 {
		r.did += " (the chosen scenarios plant none: the search finds its control)"
		r.number, r.survived = 1, 1
		return
	}
	if len(c.only) == 0 {
		r.must = minPlanted
	}
	files, size := 0, 0
	for _, dir := range append(worlds, must.Get(filepath.Glob(filepath.Join(c.folder, "*", "captured")))...) {
		n, bytes, found := c.planted.search(dir)
		files, size = files+n, size+bytes
		r.violations = append(r.violations, found...)
	}
	r.survived = max(0, r.number-len(r.violations))
	r.notes = append(r.notes, fmt.Sprintf("%d values, in 13 forms each, in %d files of logs, outputs, statuses, events and metrics, %d KB", r.number, files, size>>10))
}

// control writes a control secret in each form, and fails if the search misses a form.
func (c *chaos) control(logs string) {
	control := newPlantedSecrets(c.seed + 1)
	for i, form := range disguises(control.plant("the control")) {
		dir := must.Get(os.MkdirTemp(logs, "control-"))
		must.Do(os.WriteFile(filepath.Join(dir, "log"), append(append([]byte("error=x"), form...), "\" more"...), 0o600))
		_, _, found := control.search(dir)
		must.Do(os.RemoveAll(dir))
		if len(found) != 1 {
			must.Failf("the search did not find the control in form %d: %s", i, form)
		}
	}
}
