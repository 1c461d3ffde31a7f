package catalogue

import "github.com/keelson-io/keelson/api/v1alpha1"

// argumentOrVariable returns a condition on a container: it gains an argument, called n, or a variable,
// called e, gets another value.
func argumentOrVariable(argument, variable string) string {
	return `new != null && new != old && (type(new) == list ? new.exists(n, ` + argument + ` && !(old != null && n in old)) : ` +
		newPod(containersOf("is")+`.exists(c, `+listAt("c.?env")+`.exists(e, e.?value.orValue('') == new && (`+variable+`)))`) + `)`
}

// ofWays returns rules on settings of pods that change where data comes from or goes, and that no limit
// of the pod shows: sources of files, arguments, variables and mounts.
func ofWays() []catalogued {
	// An argument "--NAME=NUMBER UNIT" whose name says retention, with a smaller number than before.
	const lowered = `o.contains('=') && n.contains('=') && o.split('=')[0] == n.split('=')[0] &&
['s', 'm', 'h', 'd', 'w', 'y', 'MB', 'GB', 'TB', ''].exists(u, o.matches('=[0-9]{1,9}' + u + '$') && n.matches('=[0-9]{1,9}' + u + '$') &&
[[o, n].map(v, v.split('=')[1]).map(v, int(v.substring(0, v.size() - u.size())))].exists(v, v[1] < v[0]))`
	const (
		dataArgument = `r'^--?(data-?dir|dbpath|data-path|storage\.tsdb\.path|storage\.path|path\.data|data)='`
		dataVariable = `'(?i)^(pgdata|[a-z_]*data_?(dir|path|directory)|rabbitmq_mnesia_(base|dir))$'`
	)
	arguments := func(side string) string { return listAt(side + ".?args") }
	return []catalogued{
		{
			name: "git-repo-volume", effect: v1alpha1.EffectHold, on: addChangeCreate(),
			because: "the node itself runs git for the volume, with what the repository brings: its owner may run programs on the node",
			fix:     "clone the repository in an init container, into an emptyDir",
			source:  kubernetesDocs + "concepts/storage/volumes/#gitrepo",
			paths:   inPods(".volumes[*].gitRepo.repository"),
		},
		{
			name: "sysctl-value", effect: v1alpha1.EffectHold, on: fieldsAndCreation(),
			because: "the value of the sysctl holds a sign that separates settings: a container runtime may set another sysctl of the node by it",
			fix:     "write the value alone",
			source:  "https://nvd.nist.gov/vuln/detail/CVE-2022-0811",
			when: `new != null && new.exists(n, n.?value.orValue('').matches('[+=|;&\n]') &&
(old == null || !old.exists(o, o.?name == n.?name && o.?value == n.?value)))`,
			paths: inPods(".securityContext.sysctls"),
		},
		{
			name: "mount-propagation", effect: v1alpha1.EffectWarn, on: changeRemove(),
			because: "what the container mounts no longer reaches its node: pods that wait for such a volume find an empty folder",
			fix:     "keep Bidirectional in drivers of storage, which mount for other pods",
			source:  kubernetesDocs + "concepts/storage/volumes/#mount-propagation",
			when:    `old == 'Bidirectional' && new != 'Bidirectional'`, paths: inContainers(".volumeMounts[*].mountPropagation"),
		},
		{
			name: "node-dns-lost", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the pods ask the DNS of the cluster instead of their node's: a DNS server of the cluster would ask itself",
			fix:     "keep dnsPolicy Default for DNS servers, and for what runs before the DNS of the cluster",
			source:  "https://coredns.io/plugins/loop/#troubleshooting-loops-in-kubernetes-clusters",
			when:    `old == 'Default' && new != 'Default'`, paths: inPods(".dnsPolicy"),
		},
		{
			name: "service-account-changed", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the pods act under another account: they gain its rights, and lose those of their own",
			fix:     "check what the account may do, and who else uses it",
			source:  rbacGoodPractices,
			// The rule default-account is about the way back.
			when:  `!(old in ['', 'default']) && !(new in ['', 'default'])`,
			paths: inPods(".serviceAccountName"),
		},
		{
			name: "data-directory-moved", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "the program looks for its data in another folder: unless the data is there, it starts with none, and may not write to the volume at all",
			fix:     "move the data or its mount with the folder, and look at the pod's volumes",
			source:  "https://www.postgresql.org/docs/current/storage-file-layout.html",
			when: `old != null && old != new && (type(old) == list ? ` + sameContainer(arguments("o")+`.exists(o, o.matches(`+dataArgument+`) && `+
				arguments("n")+` != [] && !`+arguments("n")+`.exists(n, n == o))`) + ` : ` +
				sameContainer(listAt("o.?env")+`.exists(e, e.?value.orValue('') == old && e.?name.orValue('').matches(`+dataVariable+`) &&
!`+listAt("n.?env")+`.exists(f, f.?name == e.?name && f.?value == e.?value))`) + `)`,
			paths: append(inContainers(".args"), inContainers(".env[*].value")...),
		},
		{
			name: "retention-lowered", effect: v1alpha1.EffectWarn, kinds: templated(), on: []v1alpha1.Event{v1alpha1.OnChange},
			because: "the program keeps data for a shorter time or in less space: it deletes what is older, and no revert brings that back",
			fix:     "check the number and its unit, and keep a backup of what is older",
			source:  "https://prometheus.io/docs/prometheus/latest/storage/#operational-aspects",
			when:    sameContainer(arguments("o") + `.exists(o, o.contains('retention') && ` + arguments("n") + `.exists(n, ` + lowered + `))`),
			paths:   inContainers(".args"),
		},
		{
			name: "tls-verification-off", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChangeCreate(),
			because: "the program no longer checks whose certificate it is shown: anyone on the way can answer, and read what is sent",
			fix:     "mount the certificate of the authority that the server has, and keep the check",
			source:  "https://cwe.mitre.org/data/definitions/295.html",
			when: argumentOrVariable(`n.matches(r'^--?([a-z-]*insecure-skip-(tls-)?verify|[a-z-]*insecure-tls|[a-z-]*skip-tls-verify|[a-z-]*tls-skip-verify)(=true)?$')`,
				`e.?name.orValue('') in ['NODE_TLS_REJECT_UNAUTHORIZED', 'PYTHONHTTPSVERIFY'] && new == '0' ||
e.?name.orValue('') in ['GIT_SSL_NO_VERIFY', 'VAULT_SKIP_VERIFY'] && new in ['1', 'true']`),
			paths: append(inContainers(".args"), inContainers(".env[*].value")...),
		},
		{
			name: "anonymous-access", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChangeCreate(),
			because: "the program lets in who does not log in, with the rights of its own account or of the role that is set for them",
			fix:     "let users log in, or let only a proxy that knows them reach the program",
			source:  "https://cwe.mitre.org/data/definitions/306.html",
			when: argumentOrVariable(`n.matches('^--?(enable-skip-login(=true)?|disable-auth|no-auth|anonymous-auth=true|auth-enabled=false)$')`,
				`new == 'true' && e.?name.orValue('').matches('^GF_AUTH_ANONYMOUS_ENABLED$|(?i)(allow|enable)_anonymous')`),
			paths: append(inContainers(".args"), inContainers(".env[*].value")...),
		},
		{
			name: "leader-election-off", effect: v1alpha1.EffectWarn, kinds: templated(), on: changeRemove(),
			because: "replicas no longer agree on one that acts: two may do the same work at once, or undo each other's",
			fix:     "keep the election, or run one replica with the strategy Recreate",
			source:  "https://kubernetes.io/docs/concepts/architecture/leases/#leader-election",
			when: `old != null && old.exists(o, o.matches('^--?[a-z-]*leader-elect(ion)?(=true)?$') && !(new != null && new.exists(n, n == o || n == o.split('=')[0] ||
n == o.split('=')[0] + '=true')))`,
			paths: inContainers(".args"),
		},
		{
			name: "proxy-changed", effect: v1alpha1.EffectWarn, kinds: templated(), on: addChange(),
			because: "requests of the container go through another host, which sees who is asked, and may alter what is not encrypted",
			fix:     "check whose host it is, and list what stays inside in NO_PROXY",
			source:  "https://cwe.mitre.org/data/definitions/441.html",
			when: `new != null && new != '' && new != old && ` + newPod(containersOf("is")+`.exists(c, `+listAt("c.?env")+`.exists(e, e.?value.orValue('') == new &&
e.?name.orValue('').matches('(?i)^(https?|all)_proxy$')))`),
			paths: inContainers(".env[*].value"),
		},
	}
}
