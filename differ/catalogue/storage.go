package catalogue

import "github.com/keelson-io/keelson/api/v1alpha1"

const (
	storageGroup  = "storage.k8s.io"
	snapshotGroup = "snapshot.storage.k8s.io"

	storageClassPage = "https://kubernetes.io/docs/concepts/storage/storage-classes/"
	csiDriverPage    = "https://kubernetes-csi.github.io/docs/csi-driver-object.html"
)

// ofVolumes returns the rules on volumes, snapshots, storage classes and CSI drivers. Rules on
// claims are in [ofStorage], and precede the rules on immutable fields.
func ofVolumes() []catalogued {
	out := append(heldVolumes(), heldStorageDeletions()...)
	return append(out, warnedStorage()...)
}

func heldVolumes() []catalogued {
	volumes := []string{"PersistentVolume"}
	return []catalogued{
		{
			name: "volume-reclaim-delete", effect: v1alpha1.EffectHold, group: coreGroup, kinds: volumes,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "when the claim of the volume is deleted, its data is deleted, too",
			fix:     "keep persistentVolumeReclaimPolicy Retain, and delete the volume by hand when its data is no longer needed",
			source:  "https://kubernetes.io/docs/tasks/administer-cluster/change-pv-reclaim-policy/",
			when:    `new in ['Delete', 'Recycle'] && !(old in ['Delete', 'Recycle'])`,
			paths:   []string{".spec.persistentVolumeReclaimPolicy"},
		},
		{
			name: "snapshot-deletion-policy", effect: v1alpha1.EffectHold, group: snapshotGroup,
			kinds:   []string{"VolumeSnapshotClass", "VolumeSnapshotContent"},
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "when a VolumeSnapshot is deleted, its data is deleted, too; a class sets this for new snapshots",
			fix:     "keep deletionPolicy Retain, and create a second class for snapshots whose data may be deleted",
			source:  "https://kubernetes.io/docs/concepts/storage/volume-snapshot-classes/",
			when:    `new == 'Delete' && old != 'Delete'`,
			paths:   []string{".deletionPolicy", ".spec.deletionPolicy"},
		},
		{
			name: "volume-source", effect: v1alpha1.EffectHold, group: coreGroup, kinds: volumes, on: changesAndRemovals(),
			because: "the source of a volume is immutable: the API server refuses the change; a new volume would have other data",
			fix:     "create a second volume and claim, and copy the data",
			source:  volumesPage,
			paths: []string{
				".spec.csi.driver", ".spec.csi.volumeHandle", ".spec.nfs.server", ".spec.nfs.path", ".spec.local.path",
				".spec.hostPath.path", ".spec.iscsi.iqn", ".spec.iscsi.lun", ".spec.iscsi.targetPortal",
			},
		},
		{
			name: "volume-node-affinity", effect: v1alpha1.EffectHold, group: coreGroup, kinds: volumes, on: changesAndRemovals(),
			because: "the API server refuses the change, unless MutablePVNodeAffinity is enabled: then pods may run where the data can't be reached",
			fix:     "copy the data to a volume with the new affinity",
			source:  volumesPage + "#node-affinity",
			when:    `old != new`,
			paths:   []string{".spec.nodeAffinity"},
		},
		{
			name: "volume-claim-ref", effect: v1alpha1.EffectHold, group: coreGroup, kinds: volumes, on: changesAndRemovals(),
			because: "the volume leaves its claim: pods can lose it, and another claim may bind it and read the data",
			fix:     "keep the claimRef, and copy the data for another claim",
			source:  volumesPage + "#reserving-a-persistentvolume",
			paths:   []string{".spec.claimRef.namespace", ".spec.claimRef.name"},
		},
	}
}

func heldStorageDeletions() []catalogued {
	snapshots := deletion(snapshotGroup, "VolumeSnapshot", "deleting a snapshot may delete its data").advise(
		"set the deletion policy of its content to Retain first", "https://kubernetes.io/docs/concepts/storage/volume-snapshots/",
	)
	snapshots.kinds = []string{"VolumeSnapshot", "VolumeSnapshotContent"}
	return []catalogued{
		snapshots,
		deletion(storageGroup, "CSIDriver", "Kubernetes attaches and mounts volumes of the driver with default settings: mounts may fail").advise(
			"move every volume to another driver first", csiDriverPage,
		),
		deletion(storageGroup, "VolumeAttachment", "the volume is detached while pods may write to it: data may be corrupted").advise(
			"delete the pods that use the volume, and let the controller detach it",
			kubernetesDocs+"concepts/cluster-administration/node-shutdown/#storage-force-detach-on-timeout",
		),
	}
}

func warnedStorage() []catalogued {
	classes, drivers := []string{"StorageClass"}, []string{"CSIDriver"}
	return []catalogued{
		{
			name: "volume-host-path", effect: v1alpha1.EffectWarn, group: coreGroup, kinds: []string{"PersistentVolume"}, on: objectCreation(),
			because: "a pod that claims the volume can use a file or directory of its node",
			fix:     "use a local volume with node affinity, or a CSI driver",
			source:  "https://kubernetes.io/docs/concepts/storage/volumes/#hostpath",
			when:    `has(object.spec.hostPath)`,
			paths:   []string{""},
		},
		{
			name: "default-storage-class", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: classes, on: fieldsAndCreation(),
			because: "new claims without a class get another class, or stay pending without one; of two default classes the newest counts",
			fix:     "let exactly one class of the cluster be the default, and name a class in every claim",
			source:  "https://kubernetes.io/docs/tasks/administer-cluster/change-default-storage-class/",
			when:    `(new == 'true') != (old == 'true')`,
			paths:   annotations("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"),
		},
		{
			name: "volume-expansion-lost", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: classes, on: changesAndRemovals(),
			because: "volumes of the class can no longer be enlarged: a full volume stays full",
			fix:     "keep allowVolumeExpansion",
			source:  storageClassPage + "#allow-volume-expansion",
			when:    `old == true && new != true`,
			paths:   []string{".allowVolumeExpansion"},
		},
		{
			name: "mount-options", effect: v1alpha1.EffectWarn, kinds: []string{"StorageClass", "PersistentVolume"},
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "mount options are not checked: a wrong one fails every mount of the volume, or of new volumes of the class",
			fix:     "try the option with one volume of another class first",
			source:  storageClassPage + "#mount-options",
			when:    `new != null && new.exists(o, old == null || !(o in old))`,
			paths:   []string{".mountOptions", ".spec.mountOptions"},
		},
		{
			name: "storage-topologies", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: classes,
			because: "new volumes are created in fewer zones: pods that need one and must run elsewhere stay pending",
			fix:     "allow every zone in which the pods run",
			source:  storageClassPage + "#allowed-topologies",
			when: `new != null && new.size() > 0 && (old == null || old.size() == 0 ||
old.exists(o, o.?matchLabelExpressions.orValue([]).exists(e, e.?values.orValue([]).exists(v,
!new.exists(n, n.?matchLabelExpressions.orValue([]).exists(x, v in x.?values.orValue([])))))))`,
			paths: []string{".allowedTopologies"},
		},
		{
			name: "csi-mount-info-lost", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: drivers, on: changesAndRemovals(),
			because: "the driver no longer gets pod data, tokens or repeated calls: mounts may fail, or mounted secrets become stale",
			fix:     "upgrade the driver to a version that works without it first",
			source:  csiDriverPage,
			when: `live != null && (
live.spec.?podInfoOnMount.orValue(false) && !object.spec.?podInfoOnMount.orValue(false) ||
live.spec.?requiresRepublish.orValue(false) && !object.spec.?requiresRepublish.orValue(false) ||
live.spec.?tokenRequests.orValue([]).exists(o, !object.spec.?tokenRequests.orValue([]).exists(n, n.audience == o.audience)))`,
			paths: []string{".spec.podInfoOnMount", ".spec.requiresRepublish", ".spec.tokenRequests"},
		},
		{
			name: "csi-fs-group-policy", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: drivers, on: changesAndRemovals(),
			because: "the kubelet applies fsGroup to volumes by another rule: pods may lose access to their files",
			fix:     "check with one pod of each workload that it can still read and write its files",
			source:  "https://kubernetes-csi.github.io/docs/support-fsgroup.html",
			when:    `(new == null ? 'ReadWriteOnceWithFSType' : new) != (old == null ? 'ReadWriteOnceWithFSType' : old)`,
			paths:   []string{".spec.fsGroupPolicy"},
		},
		{
			name: "csi-storage-capacity", effect: v1alpha1.EffectWarn, group: storageGroup, kinds: drivers,
			on:      []v1alpha1.Event{v1alpha1.OnAdd, v1alpha1.OnChange},
			because: "pods with unbound claims of a WaitForFirstConsumer class stay pending until the driver publishes its capacity",
			fix:     "let the driver publish CSIStorageCapacity objects first",
			source:  "https://kubernetes.io/docs/concepts/storage/storage-capacity/",
			when:    `new == true && old != true`,
			paths:   []string{".spec.storageCapacity"},
		},
	}
}
