package cluster

import (
	"bytes"
	"embed"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/keelson-io/keelson/lab/harness/must"
	"github.com/keelson-io/keelson/lab/pki"
)

//go:embed files
var files embed.FS

// writeFiles writes all files that the processes of a new cluster read. As all functions here,
// it is a step of package must.
func (s *clusterState) writeFiles(now time.Time) {
	for _, dir := range []string{"pki", "kubeconfig", "config", "logs"} {
		must.Do(os.MkdirAll(s.dir.path(dir), 0o700))
	}
	s.writePKI(now)
	s.writeConfig()
}

// writeConfig writes the embedded files; a restarted cluster gets the current versions.
func (s *clusterState) writeConfig() {
	write(s.dir.config("audit-policy.yaml"), policy(s.Options.Audit))
	write(s.dir.config("stages.yaml"), stages())
}

// auditRules returns the rules that precede the common rules of the audit policy, by
// level.
func auditRules() map[Audit]string {
	return map[Audit]string{
		AuditBodies: "",
		AuditSecrets: `
  - level: RequestResponse
    users: [` + Keelson + `]
    verbs: [create, update, patch, delete, deletecollection]
    resources:
      - group: ""
        resources: [secrets]
    omitManagedFields: false
`,
		AuditMetadata: `
  - level: Metadata
    users: [` + Keelson + `]
`,
	}
}

// policy returns the audit policy of a level.
func policy(level Audit) []byte {
	const rules = "\nrules:\n"
	data := must.Get(files.ReadFile("files/audit-policy.yaml"))
	return bytes.Replace(data, []byte(rules), []byte(rules+strings.TrimPrefix(auditRules()[level], "\n")), 1)
}

// stages returns all stages of kwok as one YAML stream.
func stages() []byte {
	var all []byte
	for _, path := range must.Get(fs.Glob(files, "files/stages/*.yaml")) {
		all = append(append(all, "---\n"...), must.Get(files.ReadFile(path))...)
	}
	return all
}

// writePKI writes the keys and certificates. Cluster, aggregation layer and etcd have
// separate authorities, so that a certificate is valid only for its purpose.
func (s *clusterState) writePKI(now time.Time) {
	authority := func(name string) *pki.Authority {
		a := must.Get(pki.NewAuthority(s.Name+"-"+name, now))
		s.dir.writePair(name, ".crt", a.Pair)
		return a
	}
	ca, frontProxyCA, etcdCA := authority("ca"), authority("front-proxy-ca"), authority("etcd-ca")
	local := []string{"127.0.0.1", "localhost"}
	if s.Options.real() {
		services := must.Get(netip.ParsePrefix(s.Options.ServiceCIDR))
		// The API server's addresses as nodes and pods use them.
		local = append(local, machine, services.Masked().Addr().Next().String())
	}
	for file, issue := range map[string]struct {
		by      *pki.Authority
		subject pki.Subject
	}{
		"apiserver": {ca, pki.Subject{Name: "kube-apiserver", Hosts: append([]string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}, local...)}},
		"etcd":               {etcdCA, pki.Subject{Name: "etcd", Hosts: local}},
		"front-proxy-client": {frontProxyCA, pki.Subject{Name: "front-proxy-client"}},
		kubeletUser:          {ca, pki.Subject{Name: kubeletUser, Groups: []string{"system:masters"}}},
	} {
		s.dir.writePair(file, ".crt", must.Get(issue.by.Issue(issue.subject, now)))
	}
	s.dir.writePair("service-account", ".pub", must.Get(pki.NewKeyPair()))
	s.writeNodes(ca, now)
	s.writeKubeconfigs(ca, now)
}

func (s *clusterState) writeKubeconfigs(ca *pki.Authority, now time.Time) {
	masters := []string{"system:masters"}
	for file, user := range map[string]pki.Subject{
		Admin:                     {Name: Admin, Groups: masters},
		Keelson:                   {Name: Keelson},
		"kube-controller-manager": {Name: "system:kube-controller-manager"},
		"kube-scheduler":          {Name: "system:kube-scheduler"},
		"kwok":                    {Name: "kwok", Groups: masters},
		"kube-proxy":              {Name: "system:kube-proxy"},
	} {
		pair := must.Get(ca.Issue(user, now))
		write(s.dir.kubeconfig(file), must.Get(pki.Kubeconfig(s.Name, s.server(), user.Name, ca.Cert, pair)))
	}
}
