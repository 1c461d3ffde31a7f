// Package cluster runs Kubernetes clusters on loopback. The control planes are real
// components. kwok simulates nodes and pods, unless the cluster has real nodes.
//
// A cluster is a folder with its record, certificates, kubeconfigs, the data of etcd,
// the audit log, and one log per process. The processes outlive the command that
// started them. Later commands find and end them with the data in the record.
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

// record is the persistent state of a cluster between two commands.
type record struct {
	Name      string                `json:"name"`
	Created   time.Time             `json:"created"`
	Options   Options               `json:"options"`
	Bin       string                `json:"bin"`               // folder of the programs
	NodeBin   string                `json:"nodeBin,omitempty"` // folder of the programs of real nodes
	Program   string                `json:"program,omitempty"` // the lab program, which starts real nodes
	Versions  map[string]string     `json:"versions"`          // by program
	Ports     ports                 `json:"ports"`
	Processes map[string]process.ID `json:"processes"` // by component

	dir string
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

// The layout of a cluster's folder.
func (r *record) path(elem ...string) string {
	return filepath.Join(append([]string{r.dir}, elem...)...)
}
func (r *record) pki(name string) string        { return r.path("pki", name) }
func (r *record) kubeconfig(user string) string { return r.path("kubeconfig", user+".yaml") }
func (r *record) config(name string) string     { return r.path("config", name) }
func (r *record) log(component string) string   { return r.path("logs", component+".log") }
func (r *record) auditLog() string              { return r.path("audit.log") }
func (r *record) server() string {
	return fmt.Sprintf("https://%s:%d", r.Options.host(), r.Ports.APIServer)
}

func (r *record) etcd() string                         { return fmt.Sprintf("https://127.0.0.1:%d", r.Ports.Etcd) }
func (r *record) alive(component string) (bool, error) { return r.Processes[component].Alive() }

const recordFile = "cluster.json"

// save replaces the record on disk atomically.
func (r *record) save() error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the record of %s: %w", r.Name, err)
	}
	path := r.path(recordFile)
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the record of %s: %w", r.Name, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the record of %s: %w", r.Name, err)
	}
	return nil
}

// load reads a record. The error for a folder without a record wraps [ErrNotFound].
func load(dir string) (*record, error) {
	name := filepath.Base(dir)
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read the record of %s: %w", name, err)
	}
	r := &record{dir: dir}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("read the record of %s in %s: %w", name, dir, err)
	}
	if r.Name != name {
		return nil, fmt.Errorf("%s holds the record of %q: a cluster's folder must not be renamed", dir, r.Name)
	}
	if r.Processes == nil {
		r.Processes = map[string]process.ID{}
	}
	return r, nil
}
