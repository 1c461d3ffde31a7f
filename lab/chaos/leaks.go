package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
)

// leaks searches all output of Keelson in the whole run for the planted secrets. Before
// that, the search must find a control secret that leaks itself puts there.
func (c *chaos) leaks() (o outcome) {
	started := time.Now()
	o.name, o.did = "planted values", "secret values planted and searched for"
	defer func() { o.took = time.Since(started) }()
	worlds, err := filepath.Glob(filepath.Join(c.folder, "*", "logs"))
	if err != nil || len(worlds) == 0 {
		o.err = errors.Join(errors.New("there is nothing to search"), err)
		return o
	}
	if o.err = c.control(worlds[0]); o.err != nil {
		return o
	}
	if o.number = len(c.planted.values); o.number == 0 && len(c.only) > 0 {
		o.did += " (the chosen scenarios plant none: the search finds its control)"
		o.number, o.survived = 1, 1
		return o
	}
	if len(c.only) == 0 {
		o.must = minPlanted
	}
	files, size := 0, 0
	for _, folder := range []string{"logs", "captured"} {
		all, err := filepath.Glob(filepath.Join(c.folder, "*", folder))
		if err != nil {
			o.err = fmt.Errorf("find what was captured: %w", err)
			return o
		}
		for _, dir := range all {
			n, bytes, found, err := c.planted.search(dir)
			if err != nil {
				o.err = err
				return o
			}
			files, size = files+n, size+bytes
			o.violations = append(o.violations, found...)
		}
	}
	for _, v := range o.violations {
		harness.Say("planted values: VIOLATION %s", v)
	}
	o.survived = max(0, o.number-len(o.violations))
	o.notes = append(o.notes, fmt.Sprintf("%d values, in 13 forms each, in %d files of logs, outputs, statuses, events and metrics, %d KB", o.number, files, size>>10))
	return o
}

// control writes a control secret in each form, and returns an error if the search misses
// a form.
func (c *chaos) control(logs string) error {
	control := newPlantedSecrets(c.seed + 1)
	forms, err := disguises(control.plant("the control"))
	if err != nil {
		return err
	}
	for i, form := range forms {
		dir, err := os.MkdirTemp(logs, "control-")
		if err != nil {
			return fmt.Errorf("hide a control: %w", err)
		}
		err = os.WriteFile(filepath.Join(dir, "log"), append(append([]byte("error=x"), form...), "\" more"...), 0o600)
		if err != nil {
			return fmt.Errorf("hide a control: %w", err)
		}
		_, _, found, err := control.search(dir)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return fmt.Errorf("search for the control: %w", err)
		}
		if len(found) != 1 {
			return fmt.Errorf("the search did not find the control in form %d: %s", i, form)
		}
	}
	return nil
}
