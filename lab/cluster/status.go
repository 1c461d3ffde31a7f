package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/keelson-io/keelson/lab/binaries"
	"github.com/keelson-io/keelson/lab/process"
)

// State is the state of a cluster or a component.
type State string

// The states of clusters. A component is either Running or Stopped.
const (
	Running  State = "running"  // every process runs and the API server is ready
	Unready  State = "unready"  // every process runs, but the API server isn't ready
	Degraded State = "degraded" // some processes run
	Stopped  State = "stopped"  // no process runs
)

// Status is the output of lab status for a cluster. Other programs read its JSON, so
// the field names must not change.
type Status struct {
	Name             string            `json:"name"`
	State            State             `json:"state"`
	APIServer        string            `json:"apiserver"`   // URL
	Kubeconfigs      map[string]string `json:"kubeconfigs"` // path by user
	AuditLog         string            `json:"auditLog"`
	Dir              string            `json:"dir"`
	Created          time.Time         `json:"created"`
	ControlPlaneOnly bool              `json:"controlPlaneOnly"`
	Nodes            int               `json:"nodes"`
	Versions         map[string]string `json:"versions"` // by component
	Ports            map[string]int    `json:"ports"`    // etcd, etcdPeer, apiserver, and registry with real nodes
	RSSBytes         int64             `json:"rssBytes"`
	CPUPercent       float64           `json:"cpuPercent"` // of one core
	Components       []ComponentStatus `json:"components"`
}

// ComponentStatus is the status of one process. CPUPercent is the average since the
// start of the process, or over the sample of [Lab.Status].
type ComponentStatus struct {
	Name       string  `json:"name"`
	State      State   `json:"state"`
	PID        int     `json:"pid,omitempty"`
	Log        string  `json:"log"`
	AgeSeconds float64 `json:"ageSeconds"`
	RSSBytes   int64   `json:"rssBytes"`
	CPUSeconds float64 `json:"cpuSeconds"`
	CPUPercent float64 `json:"cpuPercent"` // of one core
}

// Status returns the status of every cluster, sorted by name. If sample is positive,
// Status waits that long and returns the CPU use during the wait.
func (l *Lab) Status(ctx context.Context, sample time.Duration) ([]Status, error) {
	before, err := l.observe()
	if err != nil {
		return nil, err
	}
	if sample <= 0 {
		return l.judge(ctx, before), nil
	}
	start := time.Now()
	if err := process.Wait(ctx, sample); err != nil {
		return nil, fmt.Errorf("sample the clusters: %w", err)
	}
	after, err := l.observe()
	if err != nil {
		return nil, err
	}
	relate(before, after, time.Since(start))
	return l.judge(ctx, after), nil
}

// observe reads the states of clusters and /proc. It makes no request to a server.
func (l *Lab) observe() ([]Status, error) {
	names, err := l.Names()
	if err != nil {
		return nil, err
	}
	all := []Status{}
	for _, name := range names {
		s, err := l.load(name)
		if errors.Is(err, ErrNotFound) {
			continue // another command is creating or removing the cluster
		}
		if err != nil {
			return nil, err
		}
		status, err := s.observe()
		if err != nil {
			return nil, err
		}
		all = append(all, status)
	}
	return all, nil
}

func (s *clusterState) observe() (Status, error) {
	status := Status{
		Name:      s.Name,
		APIServer: s.server(),
		Kubeconfigs: map[string]string{
			Admin:   s.dir.kubeconfig(Admin),
			Keelson: s.dir.kubeconfig(Keelson),
		},
		AuditLog:         s.dir.auditLog(),
		Dir:              string(s.dir),
		Created:          s.Created,
		ControlPlaneOnly: s.Options.ControlPlaneOnly,
		Nodes:            s.Options.Nodes,
		Versions:         s.Versions,
		Ports: map[string]int{
			"etcd": s.Ports.Etcd, "etcdPeer": s.Ports.EtcdPeer, "apiserver": s.Ports.APIServer,
		},
	}
	if s.Options.real() {
		status.Ports["registry"] = s.Ports.Registry
	}
	for _, c := range components(s.Options) {
		part := ComponentStatus{Name: c.name, State: Stopped, Log: s.dir.log(c.name)}
		id := s.Processes[c.name]
		usage, err := id.Usage()
		switch {
		case errors.Is(err, os.ErrProcessDone):
		case err != nil:
			return Status{}, fmt.Errorf("%s: look at %s: %w", s.Name, c.name, err)
		default:
			part.State, part.PID = Running, id.PID
			part.RSSBytes, part.CPUSeconds, part.AgeSeconds = usage.RSS, usage.CPU.Seconds(), usage.Age.Seconds()
			if part.AgeSeconds > 0 {
				part.CPUPercent = 100 * part.CPUSeconds / part.AgeSeconds
			}
		}
		status.RSSBytes += part.RSSBytes
		status.CPUPercent += part.CPUPercent
		status.Components = append(status.Components, part)
	}
	return status, nil
}

// relate replaces the CPU use since the start by the use between two observations.
func relate(before, after []Status, passed time.Duration) {
	type key struct {
		cluster, component string
		pid                int
	}
	spent := map[key]float64{}
	for _, s := range before {
		for _, c := range s.Components {
			spent[key{s.Name, c.Name, c.PID}] = c.CPUSeconds
		}
	}
	for i := range after {
		s := &after[i]
		s.CPUPercent = 0
		for j := range s.Components {
			c := &s.Components[j]
			c.CPUPercent = 100 * (c.CPUSeconds - spent[key{s.Name, c.Name, c.PID}]) / passed.Seconds()
			s.CPUPercent += c.CPUPercent
		}
	}
}

// judge sets the state of every cluster. If all processes of a cluster run, judge asks
// the API server whether it is ready.
func (l *Lab) judge(ctx context.Context, all []Status) []Status {
	for i := range all {
		s := &all[i]
		running := 0
		for _, c := range s.Components {
			if c.State == Running {
				running++
			}
		}
		switch running {
		case 0:
			s.State = Stopped
		case len(s.Components):
			s.State = Running
			state, err := load(filepath.Join(l.Dir, s.Name))
			if err != nil || state.apiserverReady(ctx) != nil {
				s.State = Unready
			}
		default:
			s.State = Degraded
		}
	}
	return all
}

// Version returns the version of Kubernetes that a cluster runs.
func (s Status) Version() string { return s.Versions[binaries.APIServer] }
