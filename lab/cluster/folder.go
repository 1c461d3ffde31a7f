package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/pki"
)

// folder is the path of a cluster's folder. Its methods are the layout of the folder.
type folder string

func (f folder) path(elem ...string) string {
	return filepath.Join(append([]string{string(f)}, elem...)...)
}
func (f folder) pki(name string) string        { return f.path("pki", name) }
func (f folder) kubeconfig(user string) string { return f.path("kubeconfig", user+".yaml") }
func (f folder) config(name string) string     { return f.path("config", name) }
func (f folder) log(component string) string   { return f.path("logs", component+".log") }
func (f folder) auditLog() string              { return f.path("audit.log") }

// node returns a path in the folder of a real node.
func (f folder) node(i int, elem ...string) string {
	return f.path(append([]string{"nodes", fmt.Sprint(i)}, elem...)...)
}

// writePair writes a key and its public part: a certificate, or a public key.
func (f folder) writePair(name, public string, pair pki.Pair) {
	write(f.pki(name+public), pair.Cert)
	write(f.pki(name+".key"), pair.Key)
}

// logTail returns the last lines of a component's log, for an error.
func (f folder) logTail(component string) string {
	path := f.log(component)
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(its log can't be read: %v)", err)
	}
	lines := strings.Split(string(bytes.TrimSpace(data)), "\n")
	if len(lines) > logLines {
		lines = lines[len(lines)-logLines:]
	}
	return "last lines of " + path + ":\n  " + strings.Join(lines, "\n  ")
}

func write(path string, data []byte) { must.Do(os.WriteFile(path, data, 0o600)) }
