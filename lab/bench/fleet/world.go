package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

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
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the simulation: %w", err)
	}
	var out []sim.Status
	return out, do(request, func(body io.Reader) error { return json.NewDecoder(body).Decode(&out) })
}

// command sets the faults of some clusters.
func (s *simulation) command(ctx context.Context, c sim.Command) error {
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("command the simulation: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.control+"/", bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("command the simulation: %w", err)
	}
	return do(request, func(io.Reader) error { return nil })
}

func do(request *http.Request, read func(io.Reader) error) error {
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", request.URL.Host, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode >= http.StatusMultipleChoices {
		text, err := io.ReadAll(answer.Body)
		return errors.Join(fmt.Errorf("ask %s: %s: %s", request.URL, answer.Status, text), err)
	}
	if err := read(answer.Body); err != nil {
		return fmt.Errorf("read what %s says: %w", request.URL.Host, err)
	}
	return nil
}

// startController starts the measured process.
func (m *measurement) startController() *keelson.Controller {
	m.runs++
	return must.Get(keelson.Start(keelson.Options{
		Program: m.keelson, Dir: m.dir, Name: fmt.Sprintf("controller-%d", m.runs), Repo: m.repo.dir,
		Kubeconfig: m.kubeconfig, Context: hubName, Interval: interval, More: m.flags,
	}))
}
