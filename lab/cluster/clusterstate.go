// Package cluster runs Kubernetes clusters on loopback. The control planes are real
// components. kwok simulates nodes and pods, unless the cluster has real nodes.
//
// A cluster is a folder with its state, certificates, kubeconfigs, the data of etcd,
// the audit log, and one log per process. The processes outlive the command that
// started them. Later commands find and end them with the data in the state.
// All ports are on 127.0.0.1. Real nodes are namespaces of the machine. With them, ports
// are also on the machine's address on the switch that connects the nodes.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/keelson-io/keelson/lab/process"
)

// The users whose kubeconfigs [Lab.Kubeconfig] returns.
const (
	Admin   = "admin"   // a member of system:masters
	Keelson = "keelson" // bound to cluster-admin; identifies Keelson's requests in the audit log
)

// ErrNotFound is returned for a cluster that doesn't exist.
var ErrNotFound = errors.New("no such cluster; lab status lists them")

// clusterState is the persistent state of a cluster between two commands.
type clusterState struct {
	Name      string                `json:"name"`
	Created   time.Time             `json:"created"`
	Options   Options               `json:"options"`
	Bin       string                `json:"bin"`               // folder of the programs
	NodeBin   string                `json:"nodeBin,omitempty"` // folder of the programs of real nodes
	Program   string                `json:"program,omitempty"` // the lab program, which starts real nodes
	Versions  map[string]string     `json:"versions"`          // by program
	Ports     ports                 `json:"ports"`
	Processes map[string]process.ID `json:"processes"` // by component

	dir folder
}

// names matches valid cluster names: labels of RFC 1123 of up to 40 characters, so that
// node names can contain them.
var names = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

func checkName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("%w: cluster name %q: use 1 to 40 lower case letters, digits and dashes", ErrOptions, name)
	}
	return nil
}

func (s *clusterState) server() string {
	return fmt.Sprintf("https://%s:%d", s.Options.host(), s.Ports.APIServer)
}

func (s *clusterState) etcd() string { return fmt.Sprintf("https://127.0.0.1:%d", s.Ports.Etcd) }

func (s *clusterState) alive(component string) (bool, error) { return s.Processes[component].Alive() }

const stateFile = "cluster.json"

// save replaces the state on disk atomically.
func (s *clusterState) save() error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of %s: %w", s.Name, err)
	}
	path := s.dir.path(stateFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the state of %s: %w", s.Name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the state of %s: %w", s.Name, err)
	}
	return nil
}

// load reads the state in a cluster's folder. The error for a folder without one wraps [ErrNotFound].
func load(dir string) (*clusterState, error) {
	name := filepath.Base(dir)
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of %s: %w", name, err)
	}
	s := &clusterState{dir: folder(dir)}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read the state of %s in %s: %w", name, dir, err)
	}
	if s.Name != name {
		return nil, fmt.Errorf("%s holds the state of %q: a cluster's folder must not be renamed", dir, s.Name)
	}
	if s.Processes == nil {
		s.Processes = map[string]process.ID{}
	}
	return s, nil
}
