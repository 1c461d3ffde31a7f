package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"

	"github.com/keelson-io/keelson/lab/bench/keelson"
	"github.com/keelson-io/keelson/lab/bench/sim"
	"github.com/keelson-io/keelson/lab/process"
)

// grace is the time limit for the simulation to stop.
const grace = time.Minute

// simulation is the process of the simulated API servers.
type simulation struct {
	*process.Child
	control string
	folder  string // of kubeconfigs
}

func startSimulation(ctx context.Context, dir string, clusters int, seed uint64) *simulation {
	self := must.Get(os.Executable())
	s := &simulation{folder: filepath.Join(dir, "kubeconfigs")}
	r, w, err := os.Pipe()
	must.Do(err)
	defer func() { _ = r.Close() }() // everything is read by then
	s.Child, err = process.StartChild(process.Spec{Path: self, Log: filepath.Join(dir, "simulation.log"), Args: []string{
		"sim", "--clusters", strconv.Itoa(clusters), "--seed", strconv.FormatUint(seed, 10), s.folder,
	}}, w)
	must.Do(errors.Join(err, w.Close()))
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) }) // else the read would block after ctx ends
	defer stop()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		must.Do(errors.Join(fmt.Errorf("the simulation did not start: %w (its log: %s)", err, s.Log), s.Stop(grace)))
	}
	s.control = strings.TrimSpace(line)
	return s
}

// statuses returns the status of the named clusters, or of all clusters without names.
func (s *simulation) statuses(ctx context.Context, names ...string) ([]sim.Status, error) {
	at := s.control + "/"
	if len(names) > 0 {
		at += "?clusters=" + strings.Join(names, ",")
	}
	text, err := harness.Ask(ctx, http.MethodGet, at, nil, nil)
	if err != nil {
		return nil, err
	}
	var out []sim.Status
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read what the simulation says: %w", err)
	}
	return out, nil
}

// command sets the faults of some clusters.
func (s *simulation) command(ctx context.Context, c sim.Command) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("command the simulation: %w", err)
	}
	_, err = harness.Ask(ctx, http.MethodPost, s.control+"/", data, nil)
	return err
}

// startController starts the measured process.
func (m *measurement) startController() *keelson.Controller {
	m.runs++
	return must.Get(keelson.Start(keelson.Options{
		Program: m.keelson, Dir: m.dir, Name: fmt.Sprintf("controller-%d", m.runs), Repo: m.repo.dir,
		Kubeconfig: m.kubeconfig, Context: hubName, Interval: interval, More: m.flags,
	}))
}
